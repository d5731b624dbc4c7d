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
		{in: "rootfs:/srv/debian", want: Reference{SchemeRootFS, "/srv/debian"}},
		{in: "rootfs:/srv/../srv//debian/", want: Reference{SchemeRootFS, "/srv/debian"}},
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
		{in: "oci-layout:/srv/x", want: Reference{SchemeLayout, "/srv/x"}},
		{in: "oci-layout:/srv/x/:v1@" + id, want: Reference{SchemeLayout, "/srv/x:v1@" + id}},
		{in: "oci-layout:/srv/x@" + id, want: Reference{SchemeLayout, "/srv/x@" + id}},
		{in: "oci-layout:/srv/a:b/", want: Reference{SchemeLayout, "/srv/a:b/"}},
		{in: "oci-layout:/srv/a:b/c", want: Reference{SchemeLayout, "/srv/a:b/c"}},
		{in: "docker-archive:/srv/../x.tar", want: Reference{SchemeArchive, "/x.tar"}},
		{in: "docker-archive:/srv/x:1.tar@" + id, want: Reference{SchemeArchive, "/srv/x:1.tar@" + id}},
		{in: "build:/srv/x/", want: Reference{SchemeBuild, "/srv/x"}},
		{in: "oci-layout:x", err: ErrInvalid},
		{in: "oci-layout:", err: ErrInvalid},
		{in: "oci-layout:/", err: ErrInvalid},
		{in: "oci-layout::v1", err: ErrInvalid},
		{in: "docker-archive:x.tar", err: ErrInvalid},
		{in: "docker-archive:/a\x00", err: ErrInvalid},
		{in: "build:.", err: ErrInvalid},
		{in: "build:/", err: ErrInvalid},
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

func TestReferenceParts(t *testing.T) {
	id := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	for text, want := range map[string][3]string{
		"host":                              {"", "", ""},
		"debian:12@" + id:                   {"", "", id},
		"rootfs:/srv/x":                     {"/srv/x", "", ""},
		"oci-layout:/srv/x":                 {"/srv/x", "", ""},
		"oci-layout:/srv/x:v1@" + id:        {"/srv/x", "v1", id},
		"oci-layout:/srv/a:b/":              {"/srv/a:b", "", ""},
		"docker-archive:/srv/x:1.tar":       {"/srv/x:1.tar", "", ""},
		"docker-archive:/srv/x:1.tar@" + id: {"/srv/x:1.tar", "", id},
		"build:/srv/x:1":                    {"/srv/x:1", "", ""},
	} {
		ref, err := ParseReference(text)
		if got := [3]string{ref.Path(), ref.Tag(), ref.Digest()}; err != nil || got != want {
			t.Errorf("%s has the parts %q, %v, want %q", text, got, err, want)
		}
	}
}

var seeds = []string{"host", "rootfs:/srv/x", "debian:bookworm-slim", "a/b:c", "build:/x", "oci-layout:/a:b/", "oci-layout:/a:b@sha256:0", "docker-archive:/x.tar", "rootfs:", "", "sha256:00", "x@sha256:"}

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
