package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"time"
)

// file is one file of an archive.
type file struct {
	name    string
	content []byte
	mode    int64
}

// pack makes a gzipped tar. Nothing in it depends on when and where it is made.
func pack(files []file) ([]byte, error) {
	var out bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(compressed)
	for _, f := range files {
		header := &tar.Header{
			Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: time.Unix(0, 0).UTC(), Format: tar.FormatUSTAR,
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := compressed.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
