package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/runner/record"
)

// TestResumeOverHTTP kills a server with SIGKILL while a command runs, starts it again, and
// goes on over HTTP: one of two requests gets the session, its turn continues under its id,
// and the command that was under way does not run again.
func TestResumeOverHTTP(t *testing.T) {
	m := newMachine(t)
	script := filepath.Join(m.home, "script.yaml")
	turns := "version: 1\nname: test\nturns:\n  - calls: [{tool: shell, input: {command: \"echo 1 >> attempts; sleep 600\"}}]\n" +
		"  - calls: [{tool: shell, input: {command: \"cat attempts\"}}]\n  - text: Done.\n"
	writeFile(t, script, turns, 0o644)
	backend, port := anyBackend(t), freePort(t)
	c := apiClient{t: t, base: fmt.Sprintf("http://127.0.0.1:%d", port)}
	serve := func() *running {
		r := m.serve(t, "--policy", "ci", "--backend", backend, "--model", "replay/"+script, "--listen", fmt.Sprintf("127.0.0.1:%d", port))
		c.token = m.writtenToken(t)
		return r
	}
	r := serve()
	session := c.start(m.workspace)
	turn := c.turn(session, "go")
	m.awaitFile(t, r, "attempts")
	r.kill(t)

	r = serve()
	statuses := make(chan int, 2)
	for range 2 {
		go func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.base+"/sessions/"+session+"/resume", strings.NewReader("{}"))
			if err != nil {
				statuses <- 0
				return
			}
			req.Header.Set("Authorization", "Bearer "+c.token)
			req.Header.Set("Content-Type", "application/json")
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				statuses <- 0
				return
			}
			_ = res.Body.Close()
			statuses <- res.StatusCode
		}()
	}
	if got := []int{<-statuses, <-statuses}; !slices.Contains(got, 200) || !slices.Contains(got, 409) {
		t.Fatalf("two resumes were answered %v\n%s", got, r.stderr.String())
	}
	if again := c.id(c.do(http.MethodPost, "/sessions/"+session+"/turns", map[string]any{"continue": true}, http.StatusAccepted)); again != turn {
		t.Errorf("turn %s continues as %s", turn, again)
	}
	r.until(t, "the answer", func() bool {
		return strings.Contains(string(c.do(http.MethodGet, "/sessions/"+session+"/turns/"+turn, nil, http.StatusOK)), `"Done."`)
	})
	c.do(http.MethodDelete, "/sessions/"+session, nil, http.StatusOK)
	r.signal(t, os.Interrupt)
	r.wait(t, deadline).want(t, 0)

	text := traceOf(t, m)
	resumed := payloadsOf[record.SessionResumed](t, text)
	if len(resumed) != 1 || len(resumed[0].Interrupted) != 1 || len(payloadsOf[record.SandboxStarted](t, text)) != 2 {
		t.Errorf("resumed %+v, %d attestations", resumed, len(payloadsOf[record.SandboxStarted](t, text)))
	}
	if got := m.read(t, "attempts"); got != "1\n" {
		t.Errorf("attempts are %q", got)
	}
	for _, args := range [][]string{{"verify"}, {"show"}, {"export"}} {
		m.run(t, append(append([]string{"trace"}, args...), session)...).want(t, 0)
	}
	m.wantNothingLeft(t, session)
}
