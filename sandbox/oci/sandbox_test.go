package oci

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"testing"

	"github.com/caisson-run/caisson/sandbox"
)

// output runs a shell command and returns what it wrote, and its exit.
func output(t testing.TB, sb sandbox.Sandbox, script string) (string, sandbox.Exit) {
	t.Helper()
	var buf bytes.Buffer
	p, err := sb.Start(t.Context(), sandbox.Command{Argv: []string{"/bin/sh", "-c", script}, Stdout: &buf, Stderr: &buf})
	must(t, err)
	exit, err := p.Wait()
	must(t, err)
	return buf.String(), exit
}

func TestSandboxRuns(t *testing.T) {
	both(t, func(t *testing.T, k Kind) {
		b := newBed(t, k, os.Geteuid())
		sb := b.start(t, b.spec(t, "ses_run"))
		data, err := json.MarshalIndent(sb.Attestation(), "", "  ")
		must(t, err)
		t.Logf("attestation: %s", data)
		got, exit := output(t, sb, "id; ls -la /proc/self/fd; echo hello > file; cat file; hostname")
		t.Logf("%q %+v", got, exit)
		if !exit.Status.Success() {
			t.Errorf("exit %v: %s", exit.Status, got)
		}
	})
}

// ownUntilKilled makes a sandbox and waits for its death.
func ownUntilKilled(dir string) error {
	<-context.Background().Done()
	return nil
}
