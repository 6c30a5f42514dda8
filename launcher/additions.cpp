// SPDX-License-Identifier: Apache-2.0
#include "launcher/additions.hpp"

namespace tidemill::launcher {

Result<Schema<configs::RunConfig>> run_schema(const Additions& additions) {
  auto schema = Schema<configs::RunConfig>::described();
  if (additions.schema) {
    TIDEMILL_RETURN_IF_ERROR(additions.schema(schema));
  }
  return schema;
}

Result<Schema<configs::RunConfig>> run_schema(const Session& session) {
  return run_schema(session.additions);
}

}  // namespace tidemill::launcher
