// SPDX-License-Identifier: Apache-2.0
#include "actors/errors.hpp"

#include <string>

#include <caf/all.hpp>

namespace tidemill::actors {
namespace {

constexpr caf::atom_value kCategory = caf::atom("tidemill");

}  // namespace

caf::error to_caf_error(const Status& status) {
  return {static_cast<std::uint8_t>(status.code()), kCategory, caf::make_message(status.message())};
}

Status from_caf_error(const caf::error& error) {
  if (!error) {
    return {};
  }
  if (error.category() == kCategory) {
    const caf::message& context = error.context();
    std::string text;
    if (context.match_elements<std::string>()) {
      text = context.get_as<std::string>(0);
    }
    return {static_cast<Errc>(error.code()), std::move(text)};
  }
  if (error == caf::sec::request_timeout) {
    return {Errc::kTimeout, "no reply before the deadline"};
  }
  if (error == caf::sec::request_receiver_down || error.category() == caf::atom("exit")) {
    return {Errc::kUnavailable, "the actor has terminated"};
  }
  return {Errc::kInternal, "actor system error " + std::to_string(error.code()) + " of category " +
                               caf::to_string(error.category())};
}

}  // namespace tidemill::actors
