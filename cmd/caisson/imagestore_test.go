package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

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
