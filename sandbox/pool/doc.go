// Package pool keeps sandboxes ready: it starts them ahead of time, so that a
// session begins as fast as a command and not as slowly as a container.
//
// A [Pool] is a sandbox.Backend in front of another one. Create returns a
// sandbox that was started for an equal [sandbox.Spec], apart from the
// session's name and directory. If there is none, Create starts one. In either
// case the pool then starts the next one in the background. A sandbox is used
// by one session and destroyed with it. It is never reused.
//
//	Create ──▶ ready for this spec? ──yes──▶ guards unchanged, young, answers a ping? ──yes──▶ returned
//	                  │no                            │no: destroyed, try the next one
//	                  ▼                              ▼
//	           started now, as without a pool        …            afterwards, in the background: start the next
//
// A pool is for processes that run many sessions on one workspace: a server, a
// batch, a chat. A process with one session gains nothing, because the start of
// its sandbox overlaps with the first model call.
//
// Two kinds of sandboxes are not pooled and always start on demand: overlays,
// whose layers belong to the session, and images whose content may change under
// their name (layouts, archives, builds).
//
// A ready sandbox has its own name, directory and attestation. Its directory is
// below the state directory, and the backend records it like any other sandbox,
// so that a sweep finds it if its owner was killed. It counts for admission.
// While it is ready, names reserved in its workspace (an empty .git) stay
// there, as during a session.
package pool
