// SPDX-License-Identifier: Apache-2.0
#include "tests/process/reward_gate.hpp"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.hpp"

namespace tidemill::test {
namespace {

int open_fifo(const std::filesystem::path& path) {
  constexpr mode_t kMode = 0600;
  TIDEMILL_CHECK(::mkfifo(path.c_str(), kMode) == 0 || errno == EEXIST) << path.string();
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  TIDEMILL_CHECK(descriptor >= 0) << path.string();
  return descriptor;
}

}  // namespace

RewardGate::RewardGate(const RunFolder& folder)
    : folder_(folder),
      reached_(open_fifo(folder.path() / "reached")),
      go_(open_fifo(folder.path() / "go")) {}

RewardGate::~RewardGate() {
  ::close(reached_);
  ::close(go_);
}

void RewardGate::set_behavior(const std::string& behavior) const {
  folder_.write("behavior", behavior);
}

void RewardGate::clear_behavior() const {
  std::filesystem::remove(folder_.path() / "behavior");
}

bool RewardGate::wait_reached() const {
  pollfd pipe{reached_, POLLIN, 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kHang).count();
  char byte = 0;
  return ::poll(&pipe, 1, static_cast<int>(limit)) == 1 && ::read(reached_, &byte, 1) == 1;
}

void RewardGate::open() const {
  TIDEMILL_CHECK(::write(go_, "x", 1) == 1);
}

std::string gated_config(const std::string& model, const std::string& more) {
  return "workflow: rl\nname: " + std::string(kGatedRun) + "\nseed: 7\n" + model +
         "data: {train: rows.jsonl}\n"
         "rollout: {group_size: 4, max_new_tokens: 3, workers: 2}\n"
         "train: {steps: " +
         std::to_string(kGatedSteps) +
         ", prompts_per_step: 4, learning_rate: 1e-3}\n"
         "checkpoint: {every_steps: 1}\n"
         "device: {threads: 1}\n"
         "reward:\n  kind: command\n  command: [python3, " TIDEMILL_TEST_DIR
         "/process/reward_program.py, .]\n" +
         more;
}

bool begin_and_kill(const RunFolder& folder, int step) {
  const RewardGate gate(folder);
  gate.set_behavior("gate " + std::to_string((step - 1) * kGatedRows + kGatedRows / 2));
  ProgramRun run(folder.path(), tidemill({"run", "run.yaml"}));
  const bool reached = gate.wait_reached();
  run.send(SIGKILL);
  const auto ended = run.finish();
  gate.clear_behavior();
  return reached && ended.has_value();
}

}  // namespace tidemill::test
