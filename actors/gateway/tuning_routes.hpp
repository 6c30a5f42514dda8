// SPDX-License-Identifier: Apache-2.0
// Private to actors/gateway/. The paths of /v1/fine_tuning/jobs; see `Route::handle`. Each asks the
// tuning actor.
#pragma once

#include "actors/gateway/routes.hpp"

namespace tidemill::actors {

/// How long the tuning actor may take to reply.
inline constexpr auto kTuningTime = std::chrono::seconds(60);

void list_jobs(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void create_job(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void get_job(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void cancel_job(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void pause_job(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void resume_job(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void list_job_events(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);
void list_job_checkpoints(GatewaySelf self, HttpRequest& request, const PathArguments& arguments);

}  // namespace tidemill::actors
