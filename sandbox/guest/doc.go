// Package guest is the host's end of the connection to a container's PID 1
// (cmd/caisson-guest). A backend makes the container, hands its standard input
// and output to [Dial], and forwards its sandbox.Sandbox methods to the [Conn].
//
// The guest's messages are untrusted input: a program in the container that
// broke out of its identity could speak for it. Ids, sizes, order, totals and
// credit are checked, and memory is bounded. A violation is the loss of the
// sandbox (sandbox.ErrLost), never a command's result.
//
// [Attest] turns the guest's observations ([Conn.Hello]) into the attestation,
// and [VerifyHardening] refuses a container that they show to be too weak.
package guest
