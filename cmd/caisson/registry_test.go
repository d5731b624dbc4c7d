package main

import (
	"archive/tar"
	"bytes"
	"io"
	"log"
	"net/http/httptest"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func smallImage() (v1.Image, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	text := strings.Repeat("#!shell\n", 100)
	if err := w.WriteHeader(&tar.Header{Name: "bin/sh", Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(w, text); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
	if err != nil {
		return nil, err
	}
	made, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	config, err := made.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	return mutate.ConfigFile(made, config)
}

// newRegistry runs a registry with base:1, and returns its address.
func newRegistry(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0)))) //nolint:forbidigo // what the registry takes
	t.Cleanup(server.Close)
	host := strings.TrimPrefix(server.URL, "http://")
	made, err := smallImage()
	if err == nil {
		err = push(made, host+"/base:1")
	}
	must(t, err)
	return host
}

func push(made v1.Image, ref string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	return remote.Write(tag, made)
}

// writeImages writes the image to a directory as a layout and as an archive.
func writeImages(dir string) error {
	made, err := smallImage()
	if err != nil {
		return err
	}
	index, err := layout.Write(filepath.Join(dir, "layout"), empty.Index)
	if err != nil {
		return err
	}
	if err := index.AppendImage(made); err != nil {
		return err
	}
	tag, err := name.NewTag("example.com/base:1")
	if err != nil {
		return err
	}
	return tarball.WriteToFile(filepath.Join(dir, "image.tar"), tag, made)
}
