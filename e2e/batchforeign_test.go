package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// foreignBatch makes a batch directory, as somebody else could send it, in which dir has the state
// of a sandbox of runc that was killed. To remove that runs a command that makes the file ran.
func (m *machine) foreignBatch(t *testing.T, out, dir, ran string) (state string) {
	t.Helper()
	const session = "ses_01AAAAAAAAAAAAAAAAAAAAAAAA"
	spec := `{"schema_version":1,"created_at":"2026-01-01T00:00:00Z","backend":"runc","tasks":[],"agents":["nop"],"attempts":1,"settings":{"image":"host"}}`
	state = filepath.Join(out, dir, "state")
	for name, text := range map[string]string{
		"lock": "", "batch.json": spec, "results.jsonl": "", "trials/.keep": "",
		filepath.Join(dir, "lock"): "", filepath.Join(dir, "batch.json"): spec,
		filepath.Join(dir, "state/caisson/sessions", session, "sandbox/.keep"): "",
		filepath.Join(dir, "state/caisson/cleanup", session+".json"): fmt.Sprintf(`{"version":2,"backend":"runc","session":%q,"owner":{"instance":"","boot_id":"","pid_namespace":"","pid":0,"start_time":0,"lease":"2026-01-01T00:00:00Z"},`+
			`"dir":"sessions/%s/sandbox","began":"2026-01-01T00:00:00Z","image":"","workspace":"","abandoned":true,"entries":[{"id":1,"kind":"container","name":"caisson-%s"}]}`, session, session, session),
		filepath.Join(dir, "state/caisson/oci/runc/caisson-"+session+"/state.json"): fmt.Sprintf(`{"id":"caisson-%s","init_process_pid":1073741,"config":{"cgroups":{"path":"/no-such","memory":1},`+
			`"Hooks":{"poststop":[{"path":"/bin/sh","args":["sh","-c","echo > %s"]}]}}}`, session, ran),
	} {
		path := filepath.Join(out, name)
		writeFile(t, path, text, 0o600)
	}
	return state
}

// TestForeignBatchState: results of somebody else run nothing on this machine, though they come
// with the state of sandboxes. The control is the same state with a proof that this user made it.
func TestForeignBatchState(t *testing.T) {
	needBackend(t, "runc")
	const task = `{"id":"x","prompt":"Do nothing.","verify":"true"}`
	for name, c := range map[string]struct {
		dir  string
		args []string
	}{
		"grade":  {"grades/20260101T000000.000000000", []string{"batch", "grade", "--backend", "runc"}},
		"resume": {"", []string{"batch", "--backend", "runc", "--agent", "nop", "--out"}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.write(t, "tasks.jsonl", task)
			ran := filepath.Join(m.home, "ran")
			run := func(out string) outcome {
				return m.run(t, append(c.args, out, filepath.Join(m.workspace, "tasks.jsonl"))...)
			}

			theirs := filepath.Join(m.home, "theirs")
			m.foreignBatch(t, theirs, c.dir, ran)
			got := run(theirs)
			got.want(t, 0)
			if _, err := os.Stat(ran); err == nil || !strings.Contains(got.stderr, "your Caisson did not make it there") {
				t.Errorf("a command of the results ran: %v\n%s", err == nil, got.stderr)
			}
			m.run(t, "batch", "grade", theirs).want(t, 2) // the results don't name the tasks

			own := filepath.Join(m.home, "own")
			state := m.foreignBatch(t, own, c.dir, ran)
			info, err := os.Stat(state)
			if err != nil {
				t.Fatal(err)
			}
			key := readFile(t, filepath.Join(m.home, ".local/state/caisson/batch.key"))
			code, st := hmac.New(sha256.New, key), info.Sys().(*syscall.Stat_t)
			fmt.Fprintln(code, st.Dev, st.Ino)
			writeFile(t, filepath.Join(state, "proof"), fmt.Sprintf("%x\n", code.Sum(nil)), 0o600)
			got = run(own)
			if _, err := os.Stat(ran); err != nil {
				t.Errorf("control: no command ran\n%s", got.stderr)
			}
		})
	}
}
