// Package docker makes sandboxes with a Docker engine: API 1.41 (Docker 20.10)
// to the newest, with any runtime that the engine has registered.
//
// One container per session is created, attached to, and started, with the guest
// as its PID 1 and its standard input and output as the guest's connection. The
// order of steps is that of package sandbox/internal/lifecycle, which an
// [engineContainer] serves.
//
//	Caisson                                     engine
//	-------                                     ------
//	add container, mounts to the cleanup list
//	create (AutoRemove, labels, log none)  ─▶   container, created
//	attach (stdin, stdout, stderr)         ─▶   one hijacked connection
//	start                                  ─▶   runtime starts the guest
//	guest.Dial                             ◀─▶  hello: what it observes
//	inspect                                ─▶   what the engine applied
//	compare both with the request; destroy the container if it is weaker
//
// If Caisson dies, the connection closes, the guest exits and the engine
// removes the container by itself; what else was made is in the cleanup list, for
// [Backend.Sweep] of a later Caisson. The engine's archive API, its exec API,
// privileged containers and host namespaces are not used, whatever the
// configuration contains: only the calls of one small interface are made.
//
// Every call has a deadline of its own, so that an engine which hangs is an
// error and not a hang.
package docker
