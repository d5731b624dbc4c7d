// Package spawn starts commands.
//
// One goroutine is locked to one thread, the spawner. When it starts it empties
// the thread's bounding set, sets no_new_privs, reduces its capabilities to
// what a change of identity needs, and installs the seccomp filter of commands,
// on that thread alone. Every command is then a plain syscall.ForkExec from
// it, a vfork: the child inherits all of this from the thread, and only has to
// become the command's identity. The guest's other threads are not touched by
// it, and the vfork suspends the spawner only.
//
// It works without the runtime's internals and without assembler, and costs
// what ForkExec costs; see docs/design/guest.md#how-commands-start.
package spawn
