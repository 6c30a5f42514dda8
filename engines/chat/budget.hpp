// SPDX-License-Identifier: Apache-2.0
// Failures of templates, and the limits on the resources of one rendering.
//
// Inside engines/chat a template that fails throws `TemplateError`. chat_template.cpp catches it
// and returns a Status, so no exception leaves the folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tidemill::engines::chat {

/// Reports that a template cannot be parsed or rendered. If the code that throws does not know the
/// line, it is 0 and the interpreter adds it.
class TemplateError : public std::runtime_error {
public:
  enum class Kind : std::uint8_t {
    kSyntax,  // the template cannot be parsed
    kFailed,  // an operation failed
    kRaised,  // the template called raise_exception
    kLimit,   // a limit was reached
  };
  TemplateError(Kind kind, const std::string& message, int line = 0)
      : std::runtime_error(message), kind_(kind), line_(line) {}

  [[nodiscard]] Kind kind() const noexcept { return kind_; }
  [[nodiscard]] int line() const noexcept { return line_; }

private:
  Kind kind_;
  int line_;
};

/// Throws a `TemplateError` of kind `kFailed`.
[[noreturn]] inline void fail(const std::string& message) {
  throw TemplateError(TemplateError::Kind::kFailed, message);
}

/// Counts the resources that one rendering uses and throws `kLimit` if it exceeds a limit. The
/// limits are far above what conversations need. They protect the process from hostile templates.
class Budget {
public:
  static constexpr std::uint64_t kMaxSteps = 2'000'000;              // evaluated nodes
  static constexpr std::uint64_t kMaxAllocated = 256ULL << 20U;      // bytes of all values created
  static constexpr std::uint64_t kMaxScanned = 1ULL << 30U;          // bytes read
  static constexpr std::size_t kMaxDepth = 500;                      // nested evaluations
  static constexpr std::size_t kMaxValueDepth = 200;                 // nested containers
  static constexpr std::size_t kMaxOutput = std::size_t{32} << 20U;  // bytes

  /// Counts one evaluation.
  void step() {
    if (++steps_ > kMaxSteps) {
      exceeded("more than " + std::to_string(kMaxSteps) + " steps");
    }
  }
  /// Counts bytes that the caller is about to allocate.
  void allocate(std::uint64_t bytes) {
    if (bytes > kMaxAllocated - allocated_) {
      exceeded("more than " + std::to_string(kMaxAllocated) + " bytes of values");
    }
    allocated_ += bytes;
  }
  /// Counts bytes that an operation reads.
  void scan(std::uint64_t bytes) {
    scanned_ += bytes;
    if (scanned_ > kMaxScanned) {
      exceeded("more than " + std::to_string(kMaxScanned) + " bytes of work");
    }
  }
  /// Throws if containers may not be nested this deeply.
  static void check_depth(std::size_t depth) {
    if (depth > kMaxValueDepth) {
      exceeded("values nested deeper than " + std::to_string(kMaxValueDepth));
    }
  }

  /// Throws a `TemplateError` of kind `kLimit`.
  [[noreturn]] static void exceeded(const std::string& what) {
    throw TemplateError(TemplateError::Kind::kLimit, what);
  }

private:
  std::uint64_t steps_ = 0;
  std::uint64_t allocated_ = 0;
  std::uint64_t scanned_ = 0;
};

}  // namespace tidemill::engines::chat
