// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/. The paths that generate, and those about the model and its adapters;
// see `Route::handle`.
#pragma once

#include "actors/gateway/routes.hpp"

namespace tidemill::actors {

void get_health(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void get_metrics(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void list_models(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void get_model(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void delete_model(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void post_completion(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void post_chat(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void post_tokenize(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void post_detokenize(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void post_load_adapter(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void post_unload_adapter(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);

}  // namespace tidemill::actors
