// Package sandboxtest is the conformance suite of sandbox backends: what every
// sandbox.Backend must do, written once, run against the docker, gvisor and
// runc backends and against the in-memory [Fake]. Fakes with one deliberate
// fault each must fail it, which shows that the checks can fail.
//
// A check drives a static probe (sandboxtest/probe) that lies in the workspace
// and is run as an ordinary command; the Fake answers the same verbs in
// process. Checks return errors instead of calling testing.T, so that a test
// can assert that a faulty backend fails a named one.
//
// It stands outside the ranks: tests import it, nothing else does.
package sandboxtest
