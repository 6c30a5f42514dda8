// SPDX-License-Identifier: Apache-2.0
// `tidemill tokenize`: converts text to token ids and back.
#include <CLI/App.hpp>
#include <algorithm>
#include <ostream>

#include "engines/tokenizer/tokenizer.hpp"
#include "launcher/commands/commands.hpp"
#include "launcher/models/line_reader.hpp"
#include "launcher/models/model_path.hpp"

namespace tidemill::launcher {
namespace {

using engines::AddSpecialTokens;
using engines::SpecialTokenText;
using engines::Tokenizer;

class TokenizeCommand final : public Command {
public:
  [[nodiscard]] std::string name() const override { return "tokenize"; }
  [[nodiscard]] std::string summary() const override {
    return "Converts text to token ids, or ids to text";
  }
  [[nodiscard]] std::string example() const override {
    return "tidemill tokenize models/my-model \"12+30=\"";
  }

  void declare(CLI::App& app) override {
    app.add_option("MODEL", model_, "A directory with tokenizer.json, or a GGUF file")
        ->required()
        ->type_name("");
    auto* text = app.add_option("TEXT", text_, "A text, instead of --input")->type_name("");
    app.add_option("--input", input_,
                   "JSON lines {\"text\": ...} or, to decode, {\"ids\": [...]}; - is stdin")
        ->type_name("FILE")
        ->excludes(text);
    app.add_flag("--no-special", no_special_, "Do not add special tokens around a text");
    app.add_flag("--decode", decode_, "Convert ids to text")->excludes(text);
    app.add_flag("--skip-special", skip_special_, "Leave special tokens out of decoded text");
  }

  [[nodiscard]] Status run(Session& session) override {
    if (text_.empty() && input_.empty()) {
      return invalid_argument(decode_ ? "--decode: needs --input FILE"
                                      : "tokenize: needs TEXT or --input FILE");
    }
    TIDEMILL_RETURN_IF_ERROR(check_model_path(model_));
    TIDEMILL_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::load(model_));
    if (input_.empty()) {
      return show(tokenizer, session);
    }
    return process_lines(input_, session.out, [&](const InputLine& line) {
      return decode_ ? decode(tokenizer, line, session) : encode(tokenizer, line);
    });
  }

private:
  [[nodiscard]] AddSpecialTokens special() const {
    return no_special_ ? AddSpecialTokens::kNo : AddSpecialTokens::kYes;
  }

  [[nodiscard]] Status show(const Tokenizer& tokenizer, Session& session) const {
    auto ids = tokenizer.encode(text_, special());
    if (!ids.ok()) {
      return ids.status().with_context("TEXT");
    }
    if (session.form == OutputForm::kJson) {
      return write_line(session.out, Json::Object{{"ids", ids_json(ids.value())}});
    }
    std::string separator;
    for (const std::int32_t id : ids.value()) {
      session.out << separator << id;
      separator = " ";
    }
    session.out << '\n';
    return {};
  }

  [[nodiscard]] Result<Json> encode(const Tokenizer& tokenizer, const InputLine& line) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json object, parse_line(line));
    const Json* text = object.find("text");
    if (text == nullptr || text->if_string() == nullptr) {
      return invalid_argument(line.location + ": text: must be a string");
    }
    auto ids = tokenizer.encode(*text->if_string(), special());
    if (!ids.ok()) {
      return ids.status().with_context(line.location + ": text");
    }
    return Json(Json::Object{{"ids", ids_json(ids.value())}});
  }

  // Warns of ids without a token. A model may generate such ids, because its vocabulary may be
  // larger than its tokenizer's.
  static void warn_of_unknown(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids,
                              const InputLine& line, Session& session) {
    const auto unknown = std::find_if_not(
        ids.begin(), ids.end(), [&tokenizer](std::int32_t id) { return tokenizer.contains(id); });
    if (unknown != ids.end()) {
      const auto others = std::count_if(unknown + 1, ids.end(), [&tokenizer](std::int32_t id) {
        return !tokenizer.contains(id);
      });
      session.err << "warning: " << line.location << ": ids[" << unknown - ids.begin()
                  << "]: no token has the id " << *unknown << "; the text leaves out " << others + 1
                  << (others == 0 ? " such id\n" : " such ids\n");
    }
  }

  [[nodiscard]] Result<Json> decode(const Tokenizer& tokenizer, const InputLine& line,
                                    Session& session) const {
    TIDEMILL_ASSIGN_OR_RETURN(const Json object, parse_line(line));
    TIDEMILL_ASSIGN_OR_RETURN(const auto ids, read_ids(object, line.location));
    if (!ids.has_value()) {
      return invalid_argument(line.location + ": ids: is required");
    }
    warn_of_unknown(tokenizer, *ids, line, session);
    const auto keep = skip_special_ ? SpecialTokenText::kDrop : SpecialTokenText::kKeep;
    return Json(Json::Object{{"text", tokenizer.decode(*ids, keep)}});
  }

  std::string model_;
  std::string text_;
  std::string input_;
  bool no_special_ = false;
  bool decode_ = false;
  bool skip_special_ = false;
};

}  // namespace

std::unique_ptr<Command> make_tokenize_command() {
  return std::make_unique<TokenizeCommand>();
}

}  // namespace tidemill::launcher
