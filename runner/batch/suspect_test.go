package batch_test

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caisson-run/caisson/runner/batch"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// internet makes http://mirror.example reachable in the machine's sandboxes. It resets
// connections while down is positive, counting it down; other hosts refuse them.
func (m *machine) internet(down *atomic.Int64) {
	m.t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodConnect:
			w.WriteHeader(http.StatusBadGateway)
		case down.Add(-1) < 0:
			_, _ = io.WriteString(w, "a tool\n")
		default:
			conn, _, err := w.(http.Hijacker).Hijack()
			must(m.t, err)
			must(m.t, conn.(*net.TCPConn).SetLinger(0))
			must(m.t, conn.Close())
		}
	}))
	m.t.Cleanup(server.Close)
	upstream, err := url.Parse(server.URL)
	must(m.t, err)
	m.o.Session.Egress.Policy, m.o.Session.Egress.Upstream, m.o.Session.Egress.Capture = &rule.Policy{}, upstream, true
}

// downloading is a task whose tests need a download.
const (
	downloading = "[agent]\nnetwork_mode = \"no-network\"\n[verifier]\nnetwork_mode = \"public\"\ntimeout_sec = 10\n"
	download    = "#!/bin/sh\necho 0 > /logs/verifier/reward.txt\nwget -q -O /tmp/tool http://mirror.example/tool && [ \"$(cat answer)\" = right ] && echo 1 > /logs/verifier/reward.txt\n[ ! -e hook ] || sh hook\n"
)

// TestSuspect: a verifier whose download also fails without the agent says nothing
// about the agent.
func TestSuspect(t *testing.T) {
	backendsAlone(t, func(t *testing.T, m *machine) {
		var down atomic.Int64
		m.internet(&down)
		definition := m.task(downloading, map[string]string{"tests/test.sh": download, "solution/solve.sh": solve("echo right > answer")})
		m.script("  - calls: [{tool: shell, input: {command: \"echo right > answer\"}}]\n  - text: Done.\n")
		for _, c := range []struct {
			name, agent string
			down        int64
			outcome     batch.Outcome
			class       batch.Class
			sessions    int
		}{
			{"up", "model", 0, batch.Passed, "", 2},
			{"up again", "model", 2, batch.Passed, "", 4},
			{"down", "model", 100, batch.Suspect, batch.VerifierNetwork, 4},
			{"down for the oracle", batch.Oracle, 100, batch.Suspect, batch.VerifierNetwork, 3},
			{"down for nop", batch.Nop, 100, batch.Suspect, batch.VerifierNetwork, 4},
			{"not down without the agent's files", "model", 1, batch.Failed, "", 3},
		} {
			down.Store(c.down)
			r, dir := m.run(definition, c.agent)
			if expect(t, c.name, r, c.outcome, c.class, ""); len(r.Sessions) != c.sessions {
				t.Errorf("%s: %d sessions", c.name, len(r.Sessions))
			}
			if c.outcome == batch.Suspect && !strings.Contains(r.Cause, "mirror.example:80 (host)") {
				t.Errorf("%s: %q", c.name, r.Cause)
			}
			if c.name != "down" {
				continue
			}
			read(t, dir, batch.ControlDir, batch.VerifierSessionDir, "trace.jsonl")
			trial := batch.Trial{Key: batch.Key{Task: definition.ID, Agent: c.agent, Attempt: 1}, Definition: &definition}
			down.Store(0)
			again := batch.NewTrials(m.o).Verify(t.Context(), trial, r, dir, filepath.Join(m.top, "again"))
			expect(t, "graded", again, batch.Passed, "", "")
			down.Store(100)
			again = batch.NewTrials(m.o).Verify(t.Context(), trial, r, dir, filepath.Join(m.top, "and again"))
			expect(t, "graded while it is down", again, batch.Suspect, batch.VerifierNetwork, "")
		}
		late := m.task("[verifier]\ntimeout_sec = 0.5\n", map[string]string{"tests/test.sh": "sleep 60\n", "solution/solve.sh": solve("true")})
		r, _ := m.run(late, batch.Oracle)
		expect(t, "late for the oracle", r, batch.Suspect, batch.VerifierTimeout, "")
		r, _ = m.run(late, "model")
		expect(t, "late", r, batch.Failed, batch.VerifierTimeout, "")
	})
}
