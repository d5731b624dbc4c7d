package reader

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/layer"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func TestSelectManifestEnds(t *testing.T) {
	h := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("1", 64)}
	index := []byte(`{"manifests":[{"digest":"` + h.String() + `"}]}`)
	_, _, err := SelectManifest(t.Context(), index, "linux/amd64", func(context.Context, v1.Descriptor) ([]byte, error) { return index, nil })
	if !errors.Is(err, images.ErrInvalid) {
		t.Errorf("an index of itself: %v", err)
	}
}

func TestPlainHTTPHosts(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost:5000": true, "127.0.0.1:5000": true, "127.1.2.3": true, "[::1]:5000": true, "::1": true,
		"10.0.0.1:5000": false, "192.168.1.1": false, "index.docker.io": false, "registry.local": false, "localhost.example.com": false,
		"in.lan:5000": true, "out.lan": true, "out.lan:80": true, "in.lan": false,
	} {
		if got := plainHTTP(host, []string{"in.lan:5000", "out.lan"}); got != want {
			t.Errorf("%s: %v", host, got)
		}
	}
}

// v1.Config lacks the start period's interval.
func TestStartInterval(t *testing.T) {
	config := `{"os":"linux","architecture":"amd64","config":{"Healthcheck":{"Test":["CMD","true"],"StartInterval":2000000000}}}`
	im, err := newImage(images.Reference{}, []byte(config), nil, "linux/amd64", layer.Limits{})
	if err != nil || im.Run.HealthCheck == nil || im.Run.HealthCheck.StartInterval != 2*time.Second {
		t.Errorf("%+v, %v", im, err)
	}
	broken := strings.Replace(config, "2000000000", `"2s"`, 1)
	if _, err := newImage(images.Reference{}, []byte(broken), nil, "linux/amd64", layer.Limits{}); !errors.Is(err, images.ErrInvalid) {
		t.Errorf("error %v, want ErrInvalid", err)
	}
}
