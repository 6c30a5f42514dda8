// SPDX-License-Identifier: Apache-2.0
// Runs seeds of the simulation one after another: a number of them, for a time, or until
// interrupted. A ledger records the seeds that were run, and the next call continues after the last
// one.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <iostream>
#include <span>
#include <string>
#include <utility>

#include "base/digest.hpp"
#include "base/files/file.hpp"
#include "tests/sim/seed_ledger.hpp"
#include "tests/sim/seed_run.hpp"

namespace tidemill::test {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr std::uint64_t kNoEnd = ~std::uint64_t{0};
constexpr std::uint64_t kMaxFailures = 10;                   // of one call, which then stops
constexpr std::chrono::seconds kLinePeriod{60};              // between ledger lines and progress
constexpr std::uint64_t kMaxSeed = std::uint64_t{1} << 62U;  // all fit a JSON integer

constexpr const char* kAbout =
    R"(Runs seeds of the simulated run under faults, one after another, until --seeds are done, --seconds
have passed, or it is interrupted (SIGINT, SIGTERM: the current seed is finished first). With a
ledger, it continues after the highest seed recorded there, and appends the seeds that it ran. Two
concurrent processes need two ledgers, and values of --first that are far apart. The exit code is 0
if no seed failed, 1 if one did, and another if an argument or file cannot be used.)";

// Set only by signal handlers, read between seeds.
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

struct SoakOptions {
  std::uint64_t first = 1;
  std::uint64_t seeds = kNoEnd;
  std::uint64_t seconds = kNoEnd;
  std::uint64_t max_failures = kMaxFailures;
  std::string ledger;
  bool report = false;
};

void declare(CLI::App& app, SoakOptions& options) {
  app.add_option("--first", options.first, "the first seed to run")
      ->check(CLI::Range(std::uint64_t{0}, kMaxSeed));
  app.add_option("--seeds", options.seeds, "number of seeds to run");
  app.add_option("--seconds", options.seconds, "time after which to stop");
  app.add_option("--max-failures", options.max_failures, "failed seeds after which to stop");
  auto* ledger =
      app.add_option("--ledger", options.ledger, "file that records the seeds, as JSON lines");
  app.add_flag("--report", options.report, "print the sums of the ledger and run nothing")
      ->needs(ledger);
}

// Returns a digest that identifies this program in a ledger.
Result<std::string> program_digest() {
  TIDEMILL_ASSIGN_OR_RETURN(const ReadableFile program, ReadableFile::open("/proc/self/exe"));
  TIDEMILL_ASSIGN_OR_RETURN(const Buffer bytes, program.map());
  return digest_bytes(bytes.bytes());
}

class Soak {
public:
  Soak(SoakOptions options, std::string program, std::string name)
      : options_(std::move(options)), program_(std::move(program)), name_(std::move(name)) {}

  Result<bool> run() {
    std::uint64_t seed = options_.first;
    if (!options_.ledger.empty()) {
      TIDEMILL_ASSIGN_OR_RETURN(const SeedLedger ledger, read_seed_ledger(options_.ledger));
      seed = std::max(seed, ledger.next_seed(seed));
    }
    std::cout << "sim_soak: starting at seed " << seed << ", program " << program_ << std::endl;
    begin_range(seed);
    for (std::uint64_t done = 0; !is_over(done); ++done, ++seed) {
      run_one(seed);
      if (SteadyClock::now() - range_begun_ >= kLinePeriod) {
        TIDEMILL_RETURN_IF_ERROR(end_range(seed + 1));
      }
    }
    TIDEMILL_RETURN_IF_ERROR(end_range(seed));
    std::cout << "sim_soak: " << counts_text(totals_) << "; " << num_failed_ << " failed"
              << std::endl;
    std::cout << "sim_soak: digest of all outcomes " << outcomes_.digest() << std::endl;
    return num_failed_ == 0;
  }

private:
  [[nodiscard]] bool is_over(std::uint64_t done) const {
    const auto elapsed = SteadyClock::now() - begun_;
    return interrupted || done == options_.seeds || num_failed_ >= options_.max_failures ||
           (options_.seconds != kNoEnd && elapsed >= std::chrono::seconds(options_.seconds));
  }

  void run_one(std::uint64_t seed) {
    const SeedOutcome outcome = run_seed(seed);
    add_counts(outcome.counts, range_.counts);
    outcomes_.update(std::as_bytes(std::span(outcome.digest)));
    if (outcome.failures.empty()) {
      return;
    }
    ++num_failed_;
    range_.failures.emplace_back(seed, outcome.failures.front());
    for (const std::string& failure : outcome.failures) {
      std::cout << "FAILED " << failure << "\n";
    }
    std::cout << "replay: " << name_ << " --first " << seed << " --seeds 1" << std::endl;
  }

  void begin_range(std::uint64_t first) {
    range_ = {program_, first, first, 0.0, {}, {}};
    range_begun_ = SteadyClock::now();
  }

  Status end_range(std::uint64_t end) {
    if (end == range_.first) {
      return {};
    }
    range_.end = end;
    range_.seconds = std::chrono::duration<double>(SteadyClock::now() - range_begun_).count();
    add_counts(range_.counts, totals_);
    std::cout << "seeds " << range_.first << ".." << end - 1 << ": " << range_.failures.size()
              << " failed, " << static_cast<std::uint64_t>(range_.seconds) << " s" << std::endl;
    if (!options_.ledger.empty()) {
      TIDEMILL_RETURN_IF_ERROR(append_to_ledger(options_.ledger, range_));
    }
    begin_range(end);
    return {};
  }

  SoakOptions options_;
  std::string program_;
  std::string name_;  // the program's name, as it was called
  SteadyClock::time_point begun_ = SteadyClock::now();
  SteadyClock::time_point range_begun_;
  SeedRange range_;  // since the last ledger line
  SimulationCounts totals_;
  std::uint64_t num_failed_ = 0;
  DigestHasher outcomes_;
};

Result<bool> soak(const SoakOptions& options, const char* name) {
  if (options.report) {
    TIDEMILL_ASSIGN_OR_RETURN(const SeedLedger ledger, read_seed_ledger(options.ledger));
    std::cout << ledger.to_text();
    return std::all_of(ledger.ranges.begin(), ledger.ranges.end(),
                       [](const SeedRange& range) { return range.failures.empty(); });
  }
  TIDEMILL_ASSIGN_OR_RETURN(std::string program, program_digest());
  return Soak(options, std::move(program), name).run();
}

}  // namespace
}  // namespace tidemill::test

int main(int argc, char** argv) {
  using tidemill::test::interrupted;
  CLI::App app{tidemill::test::kAbout};
  tidemill::test::SoakOptions options;
  tidemill::test::declare(app, options);
  CLI11_PARSE(app, argc, argv);
  struct sigaction action {};
  action.sa_handler = [](int /*signal*/) { interrupted = true; };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const auto passed = tidemill::test::soak(options, argv[0]);
  if (!passed.ok()) {
    std::cerr << "sim_soak: " << passed.status().message() << "\n";
    return 2;
  }
  return passed.value() ? 0 : 1;
}
