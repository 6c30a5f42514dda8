// SPDX-License-Identifier: Apache-2.0
#include "actors/gateway/openai/constraints.hpp"

#include <utility>
#include <vector>

#include "base/json/fields.hpp"
#include "base/text/quote.hpp"

namespace tidemill::actors::openai {
namespace {

using engines::ConstraintCache;

Status refuse(const std::string& path, const std::string& problem, std::string& refused) {
  refused = path;
  return invalid_argument(path + ": " + problem);
}

// Returns the schema of a `response_format`, or null if it has none that can be used.
const Json* schema_of(const Json& format, JsonFields& members) {
  const Json* outer = members.find("json_schema");
  if (outer == nullptr || outer->if_object() == nullptr) {
    members.refuse("json_schema", "must be an object with a schema");
    return nullptr;
  }
  JsonFields inner(*outer, "", "response_format.json_schema.");
  inner.refuse_others({"name", "schema", "strict", "description"});
  static_cast<void>(inner.string("name"));
  static_cast<void>(inner.boolean("strict"));
  static_cast<void>(inner.string("description"));
  if (!inner.has("schema")) {
    inner.refuse("schema", "missing; must be a JSON schema");
  }
  members.refuse(inner.status());
  return inner.status().ok() ? format.find("json_schema")->find("schema") : nullptr;
}

}  // namespace

ConstraintResult format_constraint(const Json& format, ConstraintCache* cache,
                                   std::string& refused) {
  const std::string path = "response_format";
  JsonFields members(format, "", path + ".");
  const std::string type = members.string("type").value_or("");
  if (type != "text" && type != "json_object" && type != "json_schema") {
    members.refuse("type", "must be \"text\", \"json_object\" or \"json_schema\"");
  }
  if (type == "json_schema") {
    members.refuse_others({"type", "json_schema"});
  } else {
    members.refuse_others({"type"});
  }
  const Json* schema = type == "json_schema" ? schema_of(format, members) : nullptr;
  if (!members.status().ok()) {
    // The message of a member begins with its path.
    const std::string& message = members.status().message();
    refused = members.refused().empty() ? message.substr(0, message.find(": ")) : members.refused();
    return members.status();
  }
  if (type == "text") {
    return std::shared_ptr<const engines::Constraint>();
  }
  if (cache == nullptr) {
    return refuse(path + ".type", "this server has no constraints", refused);
  }
  if (type == "json_object") {
    return cache->get("object", engines::json_object_grammar);
  }
  return cache->get("schema " + schema->to_line(), [&] {
    return engines::json_schema_grammar(*schema, path + ".json_schema.schema", refused);
  });
}

ConstraintResult call_constraint(const ForcedCalls& calls, ConstraintCache* cache,
                                 std::string& refused) {
  if (cache == nullptr) {
    return refuse("tool_choice", "this server has no constraints", refused);
  }
  std::vector<engines::CallableTool> tools;
  std::string key = calls.form == engines::ToolCallForm::kTags ? "tags" : "plain";
  key += calls.count == engines::ToolCallCount::kOne ? " one" : " more";
  std::string described;
  const Json::Array& list = *calls.tools->if_array();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Json* function = list[i].find("function");
    const std::string& name = *function->find("name")->if_string();
    if (!calls.only.empty() && name != calls.only) {
      continue;
    }
    const Json* parameters = function->find("parameters");
    parameters = parameters != nullptr && !parameters->is_null() ? parameters : nullptr;
    tools.push_back({name, parameters, "tools[" + std::to_string(i) + "].function.parameters"});
    described += Json(name).to_line() + (parameters != nullptr ? parameters->to_line() : "\n");
  }
  if (tools.empty()) {
    return refuse("tool_choice",
                  calls.only.empty() ? "needs tools" : quote(calls.only) + " is none of the tools",
                  refused);
  }
  return cache->get(key + " " + described, [&] {
    return engines::tool_call_grammar(tools, calls.form, calls.count, refused);
  });
}

}  // namespace tidemill::actors::openai
