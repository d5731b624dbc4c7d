package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/image"

	"github.com/caisson-run/caisson/images"
	"github.com/caisson-run/caisson/images/host"
	"github.com/caisson-run/caisson/sandbox"
)

// fakeImages are the images of an engine with containerd's image store. It
// knows an image by its manifest's digest, not its configuration's. The answers
// are from Docker 28.5.2 and Moby 29.
type fakeImages struct {
	mu     sync.Mutex
	byName map[string]image.InspectResponse
	loads  int
}

// answer installs the fake engine's answers about images.
func (f *fakeImages) answer(e *fakeEngine, manifest string) {
	f.byName = map[string]image.InspectResponse{}
	e.answers["GET /images/NAME/json"] = func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		name := strings.TrimSuffix(r.URL.Path[strings.Index(r.URL.Path, "/images/")+len("/images/"):], "/json")
		if found, ok := f.byName[name]; ok {
			answer(http.StatusOK, found)(w, r)
			return
		}
		failure(http.StatusNotFound, "No such image: "+name)(w, r)
	}
	e.answers["POST /images/load"] = func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.loads++
		f.byName[manifest] = image.InspectResponse{ID: manifest, Os: "linux", Architecture: "amd64"}
		answer(http.StatusOK, map[string]string{"stream": "Loaded image ID: " + manifest + "\n"})(w, r)
	}
	e.answers["POST "+path.Join("/images", manifest, "tag")] = func(w http.ResponseWriter, r *http.Request) {
		f.name(r.URL.Query(), manifest)
		w.WriteHeader(http.StatusCreated)
	}
}

// name names an image as a request says, in the engine's short form.
func (f *fakeImages) name(query url.Values, id string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	name := strings.TrimPrefix(query.Get("repo"), "docker.io/")
	if tag := query.Get("tag"); tag != "" {
		name += ":" + tag
	}
	f.byName[name] = f.byName[id]
	return name
}

// An engine that knows images by their manifests is sent a store's image once,
// and finds it by name afterwards.
func TestLoadedOnceWhereIDsDiffer(t *testing.T) {
	b := newFakeBed(t)
	r, f, err := b.backend.connect(t.Context())
	must(t, err)
	manifest := "sha256:" + strings.Repeat("e", 64)
	var engine fakeImages
	engine.answer(b.engine, manifest)
	source := newShellSource(t)
	b.backend.lifecycle.Images = source
	ref := images.Reference{Scheme: images.SchemeName, Value: "registry.example/tools:1"}
	for range 3 {
		got, err := b.backend.loadedImage(t.Context(), r, f, ref)
		must(t, err)
		if got.id != manifest || got.reference != ref.String() || got.digest != "sha256:"+strings.Repeat("d", 64) {
			t.Errorf("the container runs on %s, %s, digest %s", got.id, got.reference, got.digest)
		}
	}
	if engine.loads != 1 || source.sent != 1 {
		t.Errorf("three starts loaded the image %d times and sent it %d times", engine.loads, source.sent)
	}
	if _, ok := engine.byName[loadedTag(source.id(t))]; !ok {
		t.Errorf("it is not named after the store's id: %v", engine.byName)
	}
}

// A refused import succeeds if another one has just made the same image.
// Otherwise the error stays.
func TestSkeletonImportRefused(t *testing.T) {
	for name, other := range map[string]bool{"another made it": true, "nobody made it": false} {
		t.Run(name, func(t *testing.T) {
			b := newFakeBed(t)
			r, _, err := b.backend.connect(t.Context())
			must(t, err)
			var engine fakeImages
			engine.answer(b.engine, "sha256:"+strings.Repeat("e", 64))
			made := "sha256:" + strings.Repeat("f", 64)
			b.engine.answers["POST /images/create"] = func(w http.ResponseWriter, r *http.Request) {
				io.Copy(io.Discard, r.Body)
				if other {
					name := engine.name(r.URL.Query(), made)
					_, hash, _ := strings.Cut(name, ":")
					var found image.InspectResponse
					if err := json.Unmarshal(fmt.Appendf(nil, `{"Id":%q,"Config":{"Labels":{%q:%q}}}`, made, labelSkeleton, hash), &found); err != nil {
						t.Error(err)
					}
					engine.byName[name] = found
				}
				failure(http.StatusInternalServerError, `failed to create an image docker.io/caisson/skeleton:… after deleting the existing one: AlreadyExists: image "docker.io/caisson/skeleton:…": already exists`)(w, r)
			}
			source, err := host.Directory(t.Context(), newShellSource(t).dir)
			must(t, err)
			got, err := b.backend.skeletonImage(t.Context(), r, source)
			if other && (err != nil || got.id != made) {
				t.Errorf("got %s, %v, want what the other made", got.id, err)
			}
			if !other && (!errors.Is(err, sandbox.ErrUnavailable) || !strings.Contains(err.Error(), "already exists")) {
				t.Errorf("error %v, want the engine's refusal", err)
			}
		})
	}
}
