// SPDX-License-Identifier: Apache-2.0
// Names the namespace of the instruction set that a kernel file is compiled for.
#pragma once

// The build defines it. Tools that parse a header alone see the baseline.
#ifndef TIDEMILL_CPU_ISA
#define TIDEMILL_CPU_ISA isa_baseline
#endif
