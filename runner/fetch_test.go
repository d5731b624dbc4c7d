package runner

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools/egress/rule"
)

// TestFetchInASession: the options decide what may be fetched, refusals are recorded below their
// calls in both workspace modes, and all turns share the budget.
func TestFetchInASession(t *testing.T) {
	u := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("hello\n", 1500))
	}))
	t.Cleanup(u.Close)
	allowed, err := rule.ParseFetch(u.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, mode := range []sandbox.WorkspaceMode{sandbox.ModeBind, sandbox.ModeOverlay} {
		t.Run(string(mode), func(t *testing.T) {
			b := newBench(t, strings.ReplaceAll("  - calls: [{tool: fetch, input: {url: PAGES}}, {tool: fetch, input: {url: 'http://other.invalid/'}}]\n  - text: First.\n"+
				"  - calls: [{tool: fetch, input: {url: PAGES/a}}]\n  - text: Second.\n", "PAGES", u.URL))
			if mode == sandbox.ModeOverlay {
				b.overlaid()
			}
			b.opts.Fetch = FetchOptions{
				Allow: []rule.Rule{allowed}, Private: map[string][]netip.Prefix{"127.0.0.1": {netip.MustParsePrefix("127.0.0.1/32")}},
				Egress: limits.EgressBudget{Bytes: 12_000, Hosts: 1},
			}
			s := b.opened()
			startTurn(t, s, "one")
			startTurn(t, s, "two")
			records := b.records(s.Close())
			var reasons []string
			for _, d := range of[record.NetworkDenied](t, records) {
				reasons = append(reasons, d.Reason)
			}
			if diff := cmp.Diff([]string{"not_allowed", "egress_bytes"}, reasons); diff != "" {
				t.Errorf("refused (-want +got):\n%s", diff)
			}
			kinds := map[string]record.Kind{}
			for _, r := range records {
				kinds[r.ID] = r.Kind
				if r.Kind == record.KindNetworkDenied && kinds[r.Parent] != record.KindToolCalled {
					t.Errorf("%s is below %q, not its call", r.Kind, kinds[r.Parent])
				}
			}
			var ended []string
			for _, c := range of[record.ToolCompleted](t, records) {
				ended = append(ended, string(c.Name))
			}
			if diff := cmp.Diff([]string{"fetch"}, ended); diff != "" {
				t.Errorf("completed (-want +got):\n%s", diff)
			}
		})
	}
}
