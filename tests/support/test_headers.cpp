// SPDX-License-Identifier: Apache-2.0
// Contains only the precompiled headers, which all tests share.
