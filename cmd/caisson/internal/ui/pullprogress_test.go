package ui

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/store"
)

// pull reports two layers of an image, two seconds between reports.
func pull(p *PullProgress) {
	ref := images.Reference{Scheme: images.SchemeName, Value: "debian:12"}
	for _, r := range []store.Progress{
		{Phase: store.PhaseResolve},
		{Phase: store.PhaseDownload, Digest: "a", Total: 3 << 20},
		{Phase: store.PhaseDownload, Digest: "b", Total: 1 << 20},
		{Phase: store.PhaseDownload, Digest: "a", Done: 1 << 20, Total: 3 << 20},
		{Phase: store.PhaseDownload, Digest: "b", Done: 1 << 20, Total: 1 << 20},
		{Phase: store.PhaseDownload, Digest: "a", Done: 3 << 20, Total: 3 << 20},
		{Phase: store.PhaseUnpack, Digest: "a", Done: 3 << 20, Total: 3 << 20},
		{Phase: store.PhaseDone},
	} {
		r.Reference = ref
		p.Report(r)
		time.Sleep(2 * time.Second)
	}
}

func TestPullingInLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got []string
		p := &PullProgress{Say: func(text string) { got = append(got, text) }}
		pull(p)
		want := []string{
			"image debian:12: fetching",
			"image debian:12: downloading, 2.0 MiB of 4.0 MiB",
			"image debian:12 is there, 4.0 MiB downloaded",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("lines (-want +got):\n%s", diff)
		}
		// A second image begins anew, and a cached one is not mentioned.
		got = nil
		p.Report(store.Progress{Reference: images.Reference{Scheme: images.SchemeName, Value: "x"}, Phase: store.PhaseResolve})
		p.Report(store.Progress{Reference: images.Reference{Scheme: images.SchemeName, Value: "x"}, Phase: store.PhaseDone})
		if len(got) != 0 {
			t.Errorf("said of a cached image: %q", got)
		}
	})
}

func TestPullingWithABar(t *testing.T) {
	var said []string
	var drawn strings.Builder
	p := &PullProgress{Say: func(text string) { said = append(said, text) }, Bar: &drawn, Width: func() int { return 60 }}
	synctest.Test(t, func(*testing.T) { pull(p) })
	if diff := cmp.Diff([]string{"image debian:12 is there, 4.0 MiB downloaded"}, said); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	for _, want := range []string{"░░░░░░░░░░░░░░░░░░░░ image debian:12: fetching", "██████████░░░░░░░░░░ image debian:12: downloading, 2.0 MiB…", "unpacking, 3.0 MiB"} {
		if !strings.Contains(drawn.String(), want) {
			t.Errorf("no %q in %q", want, drawn.String())
		}
	}
	if !strings.HasSuffix(drawn.String(), "\r\x1b[K") {
		t.Errorf("the bar stays: %q", drawn.String())
	}
	for frame := range strings.SplitSeq(drawn.String(), "\r\x1b[K") {
		if n := len([]rune(frame)); n >= 60 {
			t.Errorf("%d cells on a terminal of 60: %q", n, frame)
		}
	}
}

func TestPullingShowsNoEscapes(t *testing.T) {
	var drawn strings.Builder
	p := &PullProgress{Say: func(string) {}, Bar: &drawn, Width: func() int { return 80 }}
	p.Report(store.Progress{Phase: store.PhaseBuild, Text: "\x1b]52;c;evil\x07\x1b[2J\rStep 1/2"})
	text := strings.ReplaceAll(drawn.String(), "\r\x1b[K", "")
	if strings.ContainsAny(text, "\x1b\x07\r") || !strings.Contains(text, "Step 1/2") {
		t.Errorf("drawn %q", text)
	}
}
