// Package admission decides when a sandbox may start. It bounds how many start
// at once, so that they don't time out, and how much memory the running ones
// are expected to use. In a container job with a limit of processes, it also
// bounds how many threads they may use. It covers all of a user's processes that
// share a state directory. It needs no server: each permission is a lock on a
// file below the state directory, and ends with the process that holds it.
//
//	admission/GROUP.head     held by the acquisition at the head of a group; contains its PID
//	admission/GROUP-N.slot   held while a sandbox starts; contains the holder's PID
//	admission/memory.lock    held while reservations are added up
//	admission/N.memory       held while a sandbox exists; contains the bytes and threads reserved for it
//
// The files are never removed. They are reused, so there are only as many as
// were ever held at once.
//
// Within a process, starts are admitted in the order of the calls. Between
// processes, the first to find the head free gets it; each tries at least 25
// times per second. The holder keeps the head until it is admitted or stops
// waiting, so that small sandboxes can't delay a large one forever. Only a
// stopped process is skipped.
//
// Deadlocks are impossible, since every wait has a time limit.
package admission
