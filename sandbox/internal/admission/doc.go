// Package admit decides when a sandbox may start, so that many at once neither
// slow each other's starts down until they time out nor promise more memory
// than the machine has. It holds for all processes of one user, who share a
// state folder, and needs no server: what is held are locks on files below it,
// which end with the process that holds them.
//
//	admit/GROUP.turn       held by the one that waits at the head of a group; says its pid
//	admit/GROUP-N.slot     held while a sandbox starts; says its pid
//	admit/leases.lock      held while leases are counted
//	admit/N.lease          held while a sandbox lives; says its bytes of memory
//
// The files stay, as many as were ever held at once, and are used again.
//
// Within a process starts are admitted in the order in which they came. Between
// processes the turn goes to whoever asks first when it is free, each asking
// 25 times a second and more. Who has the turn keeps it until it is admitted or gives up, so
// that a large sandbox is not passed by small ones for ever; only a process that is
// stopped is passed. Nobody waits for
// a second sandbox while it keeps others from starting: a wait ends at its time
// limit at the latest.
package admission
