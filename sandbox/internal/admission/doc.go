// Package admission decides when a sandbox may start. It bounds how many
// sandboxes start at once, so that their starts don't time out, and how much
// memory the running ones are expected to use. It covers all processes of one
// user that share a state directory. It needs no server: each permission is a
// lock on a file below the state directory, and ends with the process that
// holds it.
//
//	admission/GROUP.head     held by the acquisition at the head of a group; contains its PID
//	admission/GROUP-N.slot   held while a sandbox starts; contains the holder's PID
//	admission/memory.lock    held while reservations are added up
//	admission/N.memory       held while a sandbox exists; contains the bytes reserved for it
//
// The files are never removed. They are reused, so there are only as many as
// were ever held at once.
//
// Within a process, starts are admitted in the order of the calls. Between
// processes, the first that finds the head free gets it; each tries at least 25
// times per second. The holder of the head keeps it until it is admitted or
// stops waiting, so that small sandboxes can't delay a large one forever. Only a
// stopped process is skipped.
//
// There are no deadlocks, since every wait ends at its time limit.
package admission
