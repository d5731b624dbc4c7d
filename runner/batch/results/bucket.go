package results

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

type bucket struct {
	client       *minio.Client
	name, prefix string
}

// openBucket returns a store in a bucket. It contacts nothing.
func openBucket(name, prefix string, lookup func(string) (string, bool)) (Store, error) {
	get := func(names ...string) (value string) {
		for _, n := range names {
			v, _ := lookup(n)
			value = cmp.Or(value, v)
		}
		return value
	}
	endpoint, err := url.Parse(cmp.Or(get("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"), "https://s3.amazonaws.com"))
	if err != nil {
		return nil, err
	}
	if endpoint.Host == "" || endpoint.Scheme != "http" && endpoint.Scheme != "https" {
		return nil, fmt.Errorf("invalid endpoint %q: want an http or https URL", endpoint.Redacted())
	}
	keys := credentials.NewStaticV4(get("AWS_ACCESS_KEY_ID"), get("AWS_SECRET_ACCESS_KEY"), get("AWS_SESSION_TOKEN"))
	if get("AWS_ACCESS_KEY_ID") == "" {
		keys = credentials.NewChainCredentials([]credentials.Provider{&credentials.FileAWSCredentials{}, &credentials.IAM{}})
	}
	client, err := minio.New(endpoint.Host, &minio.Options{
		Creds: keys, Secure: endpoint.Scheme == "https", Region: get("AWS_REGION", "AWS_DEFAULT_REGION"),
	})
	if err != nil {
		return nil, err
	}
	return &bucket{client: client, name: name, prefix: prefix}, nil
}

// Put uses a single request, so that its condition applies to the whole object. S3
// limits such objects to 5 GiB.
func (b *bucket) Put(ctx context.Context, name string, content io.ReadSeeker, size int64) error {
	if err := checkName(name); err != nil {
		return err
	}
	o := minio.PutObjectOptions{DisableMultipart: true, ContentType: "application/octet-stream"}
	o.SetMatchETagExcept("*")
	_, err := b.client.PutObject(ctx, b.name, path.Join(b.prefix, name), content, size, o)
	var known minio.ErrorResponse
	if errors.As(err, &known) && known.StatusCode == http.StatusPreconditionFailed {
		return fmt.Errorf("%s: %w", name, ErrExists)
	}
	return err
}

func (b *bucket) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	o, err := b.client.GetObject(ctx, b.name, path.Join(b.prefix, name), minio.GetObjectOptions{})
	if err != nil {
		return nil, err
	}
	if _, err := o.Stat(); err != nil { // GetObject has sent nothing yet
		return nil, errors.Join(describeMissing(name, err), o.Close())
	}
	return o, nil
}

func (b *bucket) Has(ctx context.Context, name string) (bool, error) {
	if err := checkName(name); err != nil {
		return false, err
	}
	_, err := b.client.StatObject(ctx, b.name, path.Join(b.prefix, name), minio.StatObjectOptions{})
	err = describeMissing(name, err)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

func (b *bucket) List(ctx context.Context, dir string) ([]string, error) {
	prefix := path.Join(b.prefix, dir) + "/"
	var names []string
	for o := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: prefix, Recursive: true}) {
		if o.Err != nil {
			return nil, o.Err
		}
		names = append(names, strings.TrimPrefix(o.Key, prefix))
	}
	return names, ctx.Err()
}

func (b *bucket) String() string { return "s3://" + path.Join(b.name, b.prefix) }

// describeMissing makes the error for a missing object wrap [fs.ErrNotExist]. A missing
// bucket is a different error.
func describeMissing(name string, err error) error {
	var known minio.ErrorResponse
	if errors.As(err, &known) && known.StatusCode == http.StatusNotFound && known.Code != minio.NoSuchBucket {
		return fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return err
}
