// Package pool keeps sandboxes ready: started ahead, so that a session begins in
// the time of a command and not in that of a container.
//
// A [Pool] is a sandbox.Backend in front of another one. Create gives out a
// sandbox that was started for the very same [sandbox.Spec] (but for the
// session's name and folder), if there is one, and starts one otherwise;
// either way the next is then started in the background. A sandbox is used by
// one session and destroyed with it, never given to another.
//
//	Create ──▶ ready for this spec? ──yes──▶ guards unchanged, young, answers a ping? ──yes──▶ given out
//	                  │no                            │no: destroyed, the next one
//	                  ▼                              ▼
//	           started now, as without a pool        …            afterwards, in the background: start the next
//
// It is for processes that run many sessions on one workspace: a server, a
// batch, a chat. A process with one session gains nothing, as the start of its
// sandbox hides behind the first model call.
//
// What is not pooled is started now: an overlay, whose layers are the session's
// own, and images whose content may change under their name (layouts, archives,
// builds).
//
// A ready sandbox has a name and a folder of its own below the state folder and
// is journalled like any other, so that a sweep finds it when its owner was
// killed. Its attestation is its own. It counts for admission. As long as it
// is ready, a name that is reserved in its workspace (an empty .git) stays
// there, as during a session.
package pool
