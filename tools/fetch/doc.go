// Package fetch provides the fetch tool: GET requests from the host process for
// http and https URLs on the operator's allowlist.
//
//	URL of the model ─▶ canonical target ─▶ allowlist ─▶ egress budget ─▶ breaker
//	                         ▲                                               │
//	                         │ each redirect                                 ▼
//	                         └───── response ◀── connection ◀── one resolution, every
//	                               (bounded)     (metered)      address checked, the
//	                                                            checked ones dialled
//
// A URL has one canonical form, which is compared with the allowlist, dialled and
// sent. Addresses that are not public are refused when they are dialled, unless
// the configuration allows them for that host. The environment is ignored: no
// proxy, no cookies, no credentials.
//
// A response is limited while it is decoded, stored by its SHA-256 in the
// session's directory, and returned to the model as text.
package fetch
