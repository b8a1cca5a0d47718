package cgroup

import (
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, groups, mounts string
		want                 []Hierarchy
		wantErr              bool
	}{
		{
			name:   "version 1, with an empty version 2 beside it",
			groups: "5:cpu,cpuacct:/\n4:memory:/session/a\n2:name=systemd:/\n0::/\n",
			mounts: "30 20 0:1 / /proc rw - proc proc rw\n" +
				"31 20 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct\n" +
				"32 20 0:31 / /sys/fs/cgroup/memory rw,relatime shared:7 - cgroup cgroup rw,memory\n" +
				"33 20 0:32 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n" +
				"34 20 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
			want: []Hierarchy{
				{"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"},
				{"memory", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/session/a"},
				{"name=systemd", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/systemd"},
				{"", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified"},
			},
		},
		{
			name:   "version 2 alone: from the top",
			groups: "0::/user.slice/session-1.scope\n",
			mounts: "31 20 0:30 / /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n",
			want:   []Hierarchy{{"", "/sys/fs/cgroup", "/sys/fs/cgroup"}},
		},
		{
			name:   "in a container: the top of the mount is a group further down",
			groups: "4:memory:/docker/abc/job\n3:cpuset:/docker/abcd\n",
			mounts: "31 20 0:30 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"32 20 0:31 /docker/abc /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n",
			want: []Hierarchy{{"memory", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/job"}},
		},
		{name: "nothing mounted", groups: "4:memory:/\n", wantErr: true},
		{name: "nonsense", groups: "memory\n", wantErr: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parse(tc.groups, tc.mounts)
			if !slices.Equal(got, tc.want) || (err != nil) != tc.wantErr {
				t.Errorf("parse = %+v, %v; want %+v, error %v", got, err, tc.want, tc.wantErr)
			}
		})
	}
}
