// SPDX-License-Identifier: Apache-2.0
#include "tests/engines/transformer/backends.hpp"

#include "engines/executor/workers.hpp"
#include "engines/ops/cpu/factory.hpp"
#include "engines/ops/guarded/factory.hpp"
#include "engines/ops/reference/factory.hpp"

namespace tidemill::engines {
namespace {

// Operations and the workers that they run on.
struct Device {
  Workers workers{2};
  std::unique_ptr<Ops> ops;
};

std::shared_ptr<Ops> make_reference() {
  return make_reference_ops();
}

std::shared_ptr<Ops> make_cpu() {
  auto device = std::make_shared<Device>();
  device->ops = make_cpu_ops(device->workers).value();
  return {device, device->ops.get()};
}

// The CPU backend on memory that the host cannot read. Operations run as late as possible.
std::shared_ptr<Ops> make_guarded() {
  auto device = std::make_shared<Device>();
  device->ops =
      make_guarded_ops(make_cpu_host_ops(device->workers).value(), host::Execution::kDeferred)
          .value();
  return {device, device->ops.get()};
}

}  // namespace

std::vector<Backend> backends() {
  return {{"reference", make_reference}, {"cpu", make_cpu}, {"guarded", make_guarded}};
}

}  // namespace tidemill::engines
