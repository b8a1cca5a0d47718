package file

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
)

// Header is what each checkpoint begins with.
type Header struct {
	// Version is that of the file's form. A program reads no other.
	Version  int    `json:"version"`
	NodeName string `json:"nodeName"`
}

// LoadCheckpoint reads the checkpoint that an earlier process has left into content, of which got
// is the header, and reports whether there is one. It is an error if its header is not as wanted.
func LoadCheckpoint(
	read func() ([]byte, error), content any, got *Header, want Header,
) (exists bool, err error) {
	text, err := read()
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(text, content)
	}
	switch {
	case err != nil:
	case got.Version != want.Version:
		err = fmt.Errorf("the file is of version %d, not %d", got.Version, want.Version)
	case got.NodeName != want.NodeName:
		err = fmt.Errorf("the file is of node %s", got.NodeName)
	}
	return true, err
}
