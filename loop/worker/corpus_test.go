//go:build corpus

package worker_test

import (
	"os"
	"strings"
	"testing"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/loop"
	"github.com/caisson-run/caisson/loop/boundary/boundarytest"
	"github.com/caisson-run/caisson/loop/worker"
)

// TestInjectionCorpus lets a worker fetch a page with each text of public collections
// of prompt injections, and repeat it as its answer. The text stays in the results'
// envelope and wrapper, and is no call.
func TestInjectionCorpus(t *testing.T) {
	for _, c := range boundarytest.Collections(t) {
		t.Run(c.Repository, func(t *testing.T) {
			t.Parallel()
			w := newWeb(t, "")
			p := newProvider(t, map[string][]string{"a": {fetchCall(w.URL), "echo"}})
			profile := p.profile("a")
			texts := c.ReadTexts(t, os.Getenv("CAISSON_CORPUS"))
			for _, text := range texts {
				w.page = text
				p.mu.Lock()
				p.requests = map[string][]request{}
				p.mu.Unlock()
				tools := w.toolOptions(t, limits.EgressBudget{}, "fetch", "verify")
				got := confer(t, worker.ConferOptions{Options: worker.Options{Tools: tools}, Profiles: []loop.Profile{profile}})
				for _, a := range got.Answers {
					if calls := statuses(a.InnerToolCalls); calls != "fetch=ok" {
						t.Errorf("the calls are %s, after %q", calls, text)
					}
				}
				requests := p.received("a")
				if len(requests) != 2 {
					t.Errorf("%d requests, after %q", len(requests), text)
					continue
				}
				inner, after, _ := strings.Cut(strings.TrimPrefix(requests[1].last(), "<tool_result name=\"fetch\">\n"), "\n</tool_result>")
				if !boundarytest.IsWrapped(inner) || !strings.HasPrefix(after, "\n\n1 more call can be run.") {
					t.Errorf("a page left its wrapper: %q", requests[1].last())
				}
			}
			if hits := int(w.hits.Load()); hits != len(texts) {
				t.Errorf("%d requests of pages, want %d", hits, len(texts))
			}
		})
	}
}
