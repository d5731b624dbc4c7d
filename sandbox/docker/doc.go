// Package docker makes sandboxes with a Docker engine, from API 1.41 (Docker
// 20.10) on, with any runtime registered with it.
//
// One container per session is created, attached to, and started. Its PID 1 is
// the guest, whose connection is the container's standard input and output. An
// [engineContainer] implements the steps; package sandbox/internal/lifecycle
// has their order.
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
// removes the container. The cleanup list has what else was made, for a later
// [Backend.Sweep]. The engine's exec API, privileged containers and host
// namespaces are never used, whatever the configuration contains: the interface
// engine has every call that can be made.
//
// Every call has a deadline, so that a hanging engine is an error.
package docker
