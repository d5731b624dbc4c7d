// Package sandboxtest is the conformance suite of sandbox backends: what every
// sandbox.Backend must do, written once, run against the docker, gvisor and
// runc backends. [RunFaults] adds one fault at a time to a backend that passes,
// and shows that the checks find it.
//
// A check drives a static probe (sandboxtest/probe) that lies in the workspace
// and is run as an ordinary command. Checks return errors instead of calling
// testing.T, so that RunFaults can assert that one fails.
//
// It stands outside the ranks: tests import it, nothing else does.
package sandboxtest
