package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/store"
)

// pull is what a store reports of an image of two layers, of which each report
// comes a second after the one before.
func pull(p *pulling, clock *time.Time) {
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
		p.report(r)
		*clock = clock.Add(time.Second)
	}
}

func TestPullingInLines(t *testing.T) {
	var got []string
	var clock time.Time
	p := &pulling{say: func(text string) { got = append(got, text) }, now: func() time.Time { return clock }, pause: 3 * time.Second}
	pull(p, &clock)
	want := []string{
		"image debian:12: fetching",
		"image debian:12: downloading, 2.0 MiB of 4.0 MiB",
		"image debian:12 is there, 4.0 MiB downloaded",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	// A second image begins anew, and one that is cached is not spoken of.
	got = nil
	p.report(store.Progress{Reference: images.Reference{Scheme: images.SchemeName, Value: "x"}, Phase: store.PhaseResolve})
	p.report(store.Progress{Reference: images.Reference{Scheme: images.SchemeName, Value: "x"}, Phase: store.PhaseDone})
	if len(got) != 0 {
		t.Errorf("said of a cached image: %q", got)
	}
}

func TestPullingWithABar(t *testing.T) {
	var said []string
	var drawn strings.Builder
	var clock time.Time
	p := &pulling{say: func(text string) { said = append(said, text) }, bar: &drawn, width: func() int { return 60 }, now: func() time.Time { return clock }, pause: time.Second}
	pull(p, &clock)
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

// What a builder says can't speak to the terminal.
func TestPullingShowsNoEscapes(t *testing.T) {
	var drawn strings.Builder
	p := &pulling{say: func(string) {}, bar: &drawn, width: func() int { return 80 }, now: time.Now}
	p.report(store.Progress{Phase: store.PhaseBuild, Text: "\x1b]52;c;evil\x07\x1b[2J\rStep 1/2"})
	text := strings.ReplaceAll(drawn.String(), "\r\x1b[K", "")
	if strings.ContainsAny(text, "\x1b\x07\r") || !strings.Contains(text, "Step 1/2") {
		t.Errorf("drawn %q", text)
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1 << 10: "1.0 KiB", 3 << 19: "1.5 MiB", 5 << 30: "5.0 GiB"} {
		if got := size(n); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}

func TestReferenceIsRelativeToTheWorkingFolder(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	digest := "sha256:" + strings.Repeat("0", 64)
	for text, want := range map[string]string{
		"host":                        "host",
		"debian:12":                   "debian:12",
		"rootfs:x":                    "rootfs:" + dir + "/x",
		"rootfs:/srv/x":               "rootfs:/srv/x",
		"oci-layout:x:tag@" + digest:  "oci-layout:" + dir + "/x:tag@" + digest,
		"docker-archive:../x.tar":     "docker-archive:" + parent(dir) + "/x.tar",
		"build:.":                     "build:" + dir,
		"build:./sub/":                "build:" + dir + "/sub",
		"docker-archive:/srv/x.tar@x": "docker-archive:/srv/x.tar@x",
	} {
		ref, err := reference(text)
		if err != nil || ref.String() != want {
			t.Errorf("%s: %v %v, want %s", text, ref, err, want)
		}
	}
	for _, text := range []string{"", "rootfs:", "build:", "oci-layout:", "-x", "host:x"} {
		if ref, err := reference(text); err == nil {
			t.Errorf("%q is %v", text, ref)
		}
	}
}

func parent(dir string) string { return dir[:strings.LastIndex(dir, "/")] }

func TestImageAccounts(t *testing.T) {
	for uid, want := range map[int]string{-1: "agent:10001", 0: "agent:10001", 10001: "agent:10001", 1000: "agent:10001 runner:1000"} {
		var got []string
		for _, a := range imageAccounts(uid, uid) {
			got = append(got, fmt.Sprintf("%s:%d", a.Name, a.UID))
		}
		if strings.Join(got, " ") != want {
			t.Errorf("uid %d: %v, want %s", uid, got, want)
		}
	}
}

func TestBuilderGetsNoSecrets(t *testing.T) {
	got := environ{"PATH=/bin", "OPENAI_API_KEY=secret", "HTTPS_PROXY=http://proxy", "AWS_SECRET_ACCESS_KEY=secret"}.builder()
	if diff := cmp.Diff([]string{"PATH=/bin", "HTTPS_PROXY=http://proxy"}, got); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
}
