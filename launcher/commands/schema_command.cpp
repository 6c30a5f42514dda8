// SPDX-License-Identifier: Apache-2.0
// `tidemill schema`: prints the JSON Schema with which editors complete and check a run's file.
#include <CLI/App.hpp>
#include <ostream>

#include "base/schema/json_schema.hpp"
#include "launcher/additions.hpp"
#include "launcher/commands/commands.hpp"

namespace tidemill::launcher {
namespace {

class SchemaCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "schema"; }
  [[nodiscard]] std::string summary() const override {
    return "Prints the JSON Schema of a run's file, for editors";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill schema > tidemill.schema.json";
  }

  void declare(CLI::App& /*app*/) override {}

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(const auto schema, run_schema(session));
    const Json document = json_schema(schema.structure(), "A run of tidemill");
    session.out << (session.form == OutputForm::kJson ? document.to_line() : document.to_text());
    return {};
  }
};

}  // namespace

std::unique_ptr<Command> make_schema_command() {
  return std::make_unique<SchemaCommand>();
}

}  // namespace tidemill::launcher
