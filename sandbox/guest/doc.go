// Package guest is the host's end of the connection to a container's PID 1
// (cmd/caisson-guest). A backend makes the container, hands its standard input
// and output to [Dial], and forwards its sandbox.Sandbox methods to the [Conn].
//
// Everything that the guest sends is untrusted input: a program that broke out
// of its identity inside the container could speak for it. Ids, sizes, order,
// totals and credit are checked, memory is bounded, and a violation is the
// loss of the sandbox (sandbox.ErrLost), never a command's result.
//
// What the guest observed ([Conn.Hello]) becomes the attestation by [Attest],
// and is refused by [VerifyHardening] where it shows a container that is
// weaker than it must be.
package guest
