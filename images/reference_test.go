package images

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseReference(t *testing.T) {
	id := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	tests := []struct {
		in   string
		want Reference
		err  error
	}{
		{in: "host", want: Reference{Scheme: SchemeHost}},
		{in: "rootfs:/srv/debian", want: Reference{SchemeFolder, "/srv/debian"}},
		{in: "rootfs:/srv/../srv//debian/", want: Reference{SchemeFolder, "/srv/debian"}},
		{in: "debian:bookworm-slim", want: Reference{SchemeName, "debian:bookworm-slim"}},
		{in: "debian", want: Reference{SchemeName, "debian"}},
		{in: "hostess", want: Reference{SchemeName, "hostess"}},
		{in: "localhost:5000/team/tool:1.2", want: Reference{SchemeName, "localhost:5000/team/tool:1.2"}},
		{in: "ghcr.io/a/b@" + id, want: Reference{SchemeName, "ghcr.io/a/b@" + id}},
		{in: id, want: Reference{SchemeName, id}},
		{in: "", err: ErrInvalid},
		{in: "-v", err: ErrInvalid},
		{in: "--privileged", err: ErrInvalid},
		{in: "a b", err: ErrInvalid},
		{in: "debian:\x00", err: ErrInvalid},
		{in: "../x", err: ErrInvalid},
		{in: "/srv/debian", err: ErrInvalid},
		{in: "host:", err: ErrInvalid},
		{in: "rootfs:", err: ErrInvalid},
		{in: "rootfs:debian", err: ErrInvalid},
		{in: "rootfs:/", err: ErrInvalid},
		{in: "rootfs:/..", err: ErrInvalid},
		{in: "rootfs:/a\x00b", err: ErrInvalid},
		{in: strings.Repeat("a", 500), err: ErrInvalid},
		{in: "oci-layout:/srv/x", err: ErrUnsupported},
		{in: "docker-archive:/srv/x.tar", err: ErrUnsupported},
		{in: "build:/srv/x", err: ErrUnsupported},
	}
	for _, tt := range tests {
		got, err := ParseReference(tt.in)
		if !errors.Is(err, tt.err) || (err != nil) != (tt.err != nil) {
			t.Errorf("ParseReference(%q): %v, want %v", tt.in, err, tt.err)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("ParseReference(%q) (-want +got):\n%s", tt.in, diff)
		}
	}
}

func TestUnsupportedSourceIsNamed(t *testing.T) {
	for _, scheme := range []string{"oci-layout", "docker-archive", "build"} {
		_, err := ParseReference(scheme + ":/x")
		if err == nil || !strings.Contains(err.Error(), scheme+" is not supported by this version") {
			t.Errorf("%s: %v", scheme, err)
		}
	}
}

// seeds are the corpus of the fuzz target, asserted below not to be empty.
var seeds = []string{"host", "rootfs:/srv/x", "debian:bookworm-slim", "a/b:c", "build:/x", "rootfs:", "", "sha256:00", "x@sha256:"}

func TestFuzzSeeds(t *testing.T) {
	if len(seeds) < 5 {
		t.Fatal("the fuzz target has no corpus")
	}
}

func FuzzParseReference(f *testing.F) {
	for _, s := range seeds {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		ref, err := ParseReference(text)
		if err != nil {
			if ref != (Reference{}) {
				t.Errorf("%q: a reference beside the error %v", text, err)
			}
			return
		}
		again, err := ParseReference(ref.String())
		if err != nil || again != ref {
			t.Errorf("%q gives %+v, which reads back as %+v, %v", text, ref, again, err)
		}
		if strings.HasPrefix(ref.Value, "-") || strings.ContainsAny(ref.Value, "\x00") {
			t.Errorf("%q gives the value %q", text, ref.Value)
		}
	})
}
