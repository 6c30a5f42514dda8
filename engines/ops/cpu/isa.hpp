// SPDX-License-Identifier: Apache-2.0
// The namespace of the instruction set that a kernel file is being compiled for.
#pragma once

// The build names it; a header read alone is the baseline's.
#ifndef TIDEMILL_CPU_ISA
#define TIDEMILL_CPU_ISA isa_baseline
#endif
