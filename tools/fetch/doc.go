// Package fetch holds the fetch tool: GET of http and https URLs that an
// operator's allowlist names, from the host process.
//
//	URL of the model ─▶ canonical target ─▶ allowlist ─▶ egress budget ─▶ breaker
//	                         ▲                                               │
//	                         │ each redirect                                 ▼
//	                         └───── response ◀── connection ◀── one resolution, every
//	                               (bounded)     (metered)      address checked, the
//	                                                            checked ones dialled
//
// One form of a URL decides and is dialled: what is compared with the allowlist
// is what is asked for. Addresses that are not public are refused where they are
// dialled, unless the configuration allows them for that very host. Nothing of
// the environment counts: no proxy, no cookies, no credentials.
//
// What comes back is bounded while it is decoded, kept by its SHA-256 in the
// session's folder, and given to the model as text.
package fetch
