// SPDX-License-Identifier: Apache-2.0
// `tidemill keys`: makes, lists and removes the keys of a server's clients.
#include <CLI/App.hpp>
#include <ostream>
#include <string>
#include <sys/stat.h>
#include <utility>
#include <vector>

#include "actors/gateway/api_keys.hpp"
#include "base/files/file.hpp"
#include "base/json/json.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/option_checks.hpp"

namespace tidemill::launcher {
namespace {

using actors::ApiKey;
using actors::ApiKeys;

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20U;

std::string scopes_text(const ApiKey& key) {
  std::string text;
  for (const actors::KeyScope scope : key.scopes) {
    text += (text.empty() ? "" : ",") + std::string(actors::scope_name(scope));
  }
  return text;
}

class KeysCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "keys"; }
  [[nodiscard]] std::string summary() const override {
    return "Makes, lists and removes the keys of a server's clients";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill keys add keys.json --name alice --scope infer --tenant red --priority high";
  }

  void declare(CLI::App& app) override {
    accept_names(*app.add_option("ACTION", action_, "What to do with the keys")->required(),
                 {"add", "list", "remove"});
    app.add_option("FILE", file_, "The file of the keys, for serve.keys_file")
        ->required()
        ->type_name("");
    app.add_option("--name", name_, "Name of the key to add or remove")->type_name("NAME");
    accept_names(*app.add_option("--scope", scopes_,
                                 "Scope of the new key; repeat for several; infer without it")
                      ->allow_extra_args(false),
                 {"infer", "tune", "admin"});
    app.add_option("--tenant", tenant_, "Tenant of the new key; tenants get equal shares")
        ->type_name("NAME");
    accept_names(*app.add_option("--priority", priority_,
                                 "Priority of the new key's requests; normal without it"),
                 {"low", "normal", "high"});
  }

  [[nodiscard]] Status run(Session& session) override {
    TIDEMILL_ASSIGN_OR_RETURN(ApiKeys keys, read());
    if (action_ == "list") {
      list(keys, session);
      return {};
    }
    if (name_.empty()) {
      return invalid_argument("keys: " + action_ + " needs --name");
    }
    return action_ == "add" ? add(keys, session) : remove(keys);
  }

private:
  // Returns no keys if there is no file yet and one is to be added.
  [[nodiscard]] Result<ApiKeys> read() const {
    auto text = read_text_file(file_, kMaxFileBytes);
    if (text.status().code() == Errc::kNotFound && action_ == "add") {
      return ApiKeys();
    }
    TIDEMILL_RETURN_IF_ERROR(text.status());
    return ApiKeys::parse(text.value(), file_);
  }

  [[nodiscard]] Status write(const ApiKeys& keys) const {
    PosixFileSystem files;
    TIDEMILL_RETURN_IF_ERROR(write_file(files, file_, keys.to_text()));
    // Only the owner may read or change the file.
    return ::chmod(file_.c_str(), S_IRUSR | S_IWUSR) == 0
               ? Status()
               : Status(Errc::kUnavailable, file_ + ": its permissions cannot be set");
  }

  [[nodiscard]] Status add(ApiKeys& keys, Session& session) const {
    const std::string secret = actors::make_api_key();
    ApiKey key{name_, {}, actors::hash_api_key(secret), tenant_};
    if (!priority_.empty()) {
      TIDEMILL_ASSIGN_OR_RETURN(key.priority, actors::parse_priority(priority_));
    }
    for (const std::string& scope : scopes_.empty() ? std::vector<std::string>{"infer"} : scopes_) {
      TIDEMILL_ASSIGN_OR_RETURN(const actors::KeyScope parsed, actors::parse_scope(scope));
      key.scopes.push_back(parsed);
    }
    if (Status added = keys.add(std::move(key)); !added.ok()) {
      return added.with_context(file_);
    }
    TIDEMILL_RETURN_IF_ERROR(write(keys));
    if (session.form == OutputForm::kJson) {
      session.out << Json(Json::Object{{"name", name_}, {"key", secret}}).to_line();
    } else {
      session.out << secret << '\n';
      session.err << "The key is not shown again. Restart the server to accept it.\n";
    }
    return {};
  }

  [[nodiscard]] Status remove(ApiKeys& keys) const {
    if (Status removed = keys.remove(name_); !removed.ok()) {
      return removed.with_context(file_);
    }
    return write(keys);
  }

  static void list(const ApiKeys& keys, Session& session) {
    for (const ApiKey& key : keys.all()) {
      if (session.form == OutputForm::kJson) {
        session.out << Json(Json::Object{
                                {"name", key.name},
                                {"scopes", scopes_text(key)},
                                {"tenant", key.tenant},
                                {"priority", std::string(actors::priority_name(key.priority))}})
                           .to_line();
      } else {
        session.out << key.name << "  " << scopes_text(key) << "  "
                    << actors::priority_name(key.priority)
                    << (key.tenant.empty() ? "" : "  " + key.tenant) << '\n';
      }
    }
  }

  std::string action_;
  std::string file_;
  std::string name_;
  std::vector<std::string> scopes_;
  std::string tenant_;
  std::string priority_;
};

}  // namespace

std::unique_ptr<Command> make_keys_command() {
  return std::make_unique<KeysCommand>();
}

}  // namespace tidemill::launcher
