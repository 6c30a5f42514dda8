// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/. The paths of /v1/files; see `Route::handle`. All of them work at the
// file port.
#pragma once

#include "actors/gateway/routes.hpp"

namespace tidemill::actors {

void list_files(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void upload_file(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void get_file(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void delete_file(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void get_file_content(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);

/// Goes on with a file whose bytes are being sent: reads the next part and sends it.
void on_file_sent(GatewaySelf self, ExchangeId id);

}  // namespace tidemill::actors
