//go:build corpus

package boundary

import (
	"os"
	"testing"

	"github.com/caisson-run/caisson/loop/boundary/boundarytest"
	"github.com/caisson-run/caisson/tools"
)

// TestCollections wraps each text of public collections of prompt injections, for a
// model and for a worker, and counts all texts and the marked ones.
func TestCollections(t *testing.T) {
	for _, want := range boundarytest.Collections(t) {
		t.Run(want.Repository, func(t *testing.T) {
			t.Parallel()
			got := want
			got.Texts, got.Marked = 0, 0
			for _, text := range want.ReadTexts(t, os.Getenv("CAISSON_CORPUS")) {
				got.Texts++
				if wrapped := JoinText(WrapBlocks([]tools.Block{{Text: text}})); !boundarytest.IsWrapped(wrapped) {
					t.Errorf("a text left its wrapper: %q", wrapped)
				}
				if len(findPhrases(text)) > 0 {
					got.Marked++
				}
				forWorker := WrapForWorker(text)
				inner := ResultText([]tools.Block{{Text: string(forWorker)}})
				if found := findPhrases(inner); !boundarytest.IsWrapped(string(forWorker)) || len(found) > 0 {
					t.Errorf("for a worker, %v is left of %q", found, text)
				}
			}
			if got.Texts != want.Texts || got.Marked != want.Marked {
				t.Errorf("%d texts, %d marked; want %d, %d", got.Texts, got.Marked, want.Texts, want.Marked)
			}
		})
	}
}
