// Package spawn starts commands.
//
// One goroutine is locked to one thread, the spawner. It first empties the
// thread's bounding set, sets no_new_privs, reduces its capabilities to those
// that a change of identity needs, and installs the commands' seccomp filter,
// all on that thread only. Every command is then a plain syscall.ForkExec from
// it, a vfork: the child inherits all this from the thread, and only has to
// become the command's identity. The guest's other threads are not affected,
// and the vfork suspends only the spawner.
//
// It uses no internals of the runtime and no assembler, and costs no more than
// ForkExec; see docs/design/guest.md#how-commands-start.
package spawn
