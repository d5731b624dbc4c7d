// Package sandboxtest is the conformance suite for sandbox backends, run
// against docker, gvisor and runc. [RunFaults] adds one fault at a time to a
// backend that passes, and shows that the checks find it.
//
// A check runs a static probe (sandboxtest/probe) that lies in the workspace,
// as an ordinary command. Checks return errors instead of calling testing.T, so
// that RunFaults can assert that one fails.
//
// Only tests import the package; it stands outside the ranks.
package sandboxtest
