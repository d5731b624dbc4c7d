package images_test

import (
	"strings"
	"testing"

	"github.com/caisson-run/caisson/images"
)

func TestParseLocalReference(t *testing.T) {
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
		ref, err := images.ParseLocalReference(text)
		if err != nil || ref.String() != want {
			t.Errorf("%s: %v %v, want %s", text, ref, err, want)
		}
	}
	for _, text := range []string{"", "rootfs:", "build:", "oci-layout:", "-x", "host:x"} {
		if ref, err := images.ParseLocalReference(text); err == nil {
			t.Errorf("%q is %v", text, ref)
		}
	}
}

func parent(dir string) string { return dir[:strings.LastIndex(dir, "/")] }
